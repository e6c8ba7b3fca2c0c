"""Times of attention on JAX's arrays, whose rows N are sharded over a mesh; see `bench_shards`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from cuevo.jax import evoformer_attention
from shard_times import Times, milliseconds, shapes
from workloads import Workload


def count(device: str, wanted: int) -> int:
    """How many devices there are; of the CPU as many as are wanted."""
    if device == "cpu":
        jax.config.update("jax_num_cpu_devices", wanted)
    return len(jax.devices(device))


def run(devices: int, device: str, size: Workload, tell: Callable[..., None]) -> None:
    """Measure, and tell the times."""
    keys = jax.random.split(jax.random.key(0), 6)
    of_all = shapes(size)
    of_all["dout"] = of_all["q"]
    made = {
        name: jax.random.normal(key, shape, "bfloat16")
        for key, (name, shape) in zip(keys, of_all.items(), strict=True)
    }
    places = jax.devices(device)[:devices]
    copies = [jax.device_put(made, place) for place in places]
    mesh = jax.make_mesh((devices,), ("n",), axis_types=(AxisType.Auto,), devices=places)
    rows, everywhere = NamedSharding(mesh, P(None, "n")), NamedSharding(mesh, P())
    sharded = {
        name: jax.device_put(x, everywhere if name == "pair_bias" else rows)
        for name, x in made.items()
    }
    times = []
    for name, passes in (("forward", forward), ("forward and backward", both)):
        call = jax.jit(passes)
        whole = time(lambda call=call: [call(**given) for given in copies])
        times.append(Times(name, whole, time(lambda call=call: call(**sharded))))
    tell("jax", devices, device, size, times)


def forward(dout: Any, **operands: Any) -> Any:
    return evoformer_attention(**operands)


def both(dout: Any, **operands: Any) -> Any:
    out, pull = jax.vjp(lambda operands: evoformer_attention(**operands), operands)
    return out, pull(dout)


def time(call: Callable[[], Any]) -> float:
    """Milliseconds of a call, of the slowest device."""
    return milliseconds(call, jax.block_until_ready, lambda: None)
