"""Gated triangle attention as a module of torch, to copy: checked, and trained for some steps.

python examples/front_ends/torch_module.py        on the GPU if there is one, else the CPU executor
"""

import argparse
from collections.abc import Callable

if __name__ == "__main__":  # the help page needs no torch
    layout = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=layout).parse_args()

import torch
from torch import Tensor, nn

from cuevo.torch import evoformer_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS = 6


class TriangleAttention(nn.Module):
    """Attention of the edges i-j to the edges i-k; around the ending node of j-i to k-i."""

    def __init__(
        self,
        channels: int,
        heads: int,
        head_dim: int,
        ending: bool = False,
        attend: Callable[..., Tensor] = evoformer_attention,
    ) -> None:
        super().__init__()
        self.heads, self.ending, self.attend = heads, ending, attend
        width = heads * head_dim
        self.norm = nn.LayerNorm(channels)
        self.qkv = nn.Linear(channels, 3 * width, bias=False)
        self.bias = nn.Linear(channels, heads, bias=False)
        self.gate = nn.Linear(channels, width)
        self.out = nn.Linear(width, channels)

    def forward(self, pair: Tensor, mask: Tensor) -> Tensor:
        """pair [B, L, L, C], mask [B, L, L] bool, True where both residues are there."""
        if self.ending:
            pair, mask = pair.transpose(1, 2), mask.transpose(1, 2)
        x = self.norm(pair)
        # Views of one projection, [B, L, L, H, D], and of another, [B, 1, H, L, L]: no copies.
        q, k, v = (y.unflatten(-1, (self.heads, -1)) for y in self.qkv(x).chunk(3, dim=-1))
        pair_bias = self.bias(x).permute(0, 3, 1, 2)[:, None]
        out = self.attend(q, k, v, mask[:, :, None, None], pair_bias).flatten(3)
        result = self.out(self.gate(x).sigmoid() * out)
        return result.transpose(1, 2) if self.ending else result


def plain_attention(
    q: Tensor, k: Tensor, v: Tensor, mask_bias: Tensor, pair_bias: Tensor
) -> Tensor:
    """What evoformer_attention computes, with a matrix of all scores."""
    scores = torch.einsum("bnqhd,bnkhd->bnhqk", q, k) * q.shape[-1] ** -0.5 + pair_bias
    weights = scores.masked_fill(~mask_bias, -1e9).softmax(-1)
    return torch.einsum("bnhqk,bnkhd->bnqhd", weights, v)


def make_problem(length: int, channels: int) -> tuple[Tensor, Tensor]:
    """A pair representation, and the mask of a sequence with two residues of padding."""
    present = torch.arange(length, device=DEVICE) < length - 2
    mask = (present[:, None] & present)[None]
    return torch.randn(1, length, length, channels, device=DEVICE), mask


def relative_error(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).detach().norm() / exact.detach().norm())


def check(ending: bool) -> None:
    """Compare result and gradients with the plain module, which is float32 throughout."""
    pair, mask = make_problem(length=17, channels=32)
    module = TriangleAttention(32, heads=2, head_dim=16, ending=ending).to(DEVICE)
    plain = TriangleAttention(32, 2, 16, ending, attend=plain_attention).to(DEVICE)
    plain.load_state_dict(module.state_dict())
    seen = mask[..., None]  # rows of padding say nothing, in either
    with torch.autocast(DEVICE, torch.bfloat16):
        result = module(pair, mask) * seen
    exact = plain(pair, mask) * seen
    dout = torch.randn_like(exact)
    result.backward(dout.to(result.dtype))
    exact.backward(dout)
    largest = max(
        relative_error(weight.grad, other.grad)
        for weight, other in zip(module.parameters(), plain.parameters(), strict=True)
    )
    node = "ending" if ending else "starting"
    print(f"{node} node: error {relative_error(result, exact):.1e}, of gradients {largest:.1e}")


def train() -> None:
    """Learn a fixed random function of the pair representation."""
    pair, mask = make_problem(length=15, channels=32)
    target = torch.tanh(pair @ torch.randn(32, 32, device=DEVICE) / 8)
    module = TriangleAttention(32, heads=2, head_dim=16).to(DEVICE)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16):
            difference = pair + module(pair, mask) - target
        loss = difference.float()[mask].square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"loss {losses[0]:.3f}, after {STEPS} steps {losses[-1]:.3f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    check(ending=False)
    check(ending=True)
    train()
