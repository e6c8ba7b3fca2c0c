"""A tensor of torch without torch, of memory that is not there."""


class Name:
    """A torch.dtype or torch.device: hashable, known by its text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


class FakeTensor:
    """What `view` reads of a torch tensor, and nothing else."""

    def __init__(self, shape: tuple[int, ...], stride: tuple[int, ...], dtype: Name, device: Name):
        self._stride = stride
        self.shape = shape
        self.dtype = dtype
        self.device = device

    def data_ptr(self) -> int:
        return 0x7F0000001000

    def is_neg(self) -> bool:
        return False

    _is_zerotensor = is_neg

    def stride(self) -> tuple[int, ...]:
        return self._stride

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @shape.setter
    def shape(self, shape: tuple[int, ...]) -> None:
        self._shape = shape

    @property
    def dtype(self) -> Name:
        return self._dtype

    @dtype.setter
    def dtype(self, dtype: Name) -> None:
        self._dtype = dtype

    @property
    def device(self) -> Name:
        return self._device

    @device.setter
    def device(self, device: Name) -> None:
        self._device = device

    def __dlpack__(self, **_: object) -> object:
        raise AssertionError("a tensor is read by its attributes")

    def __dlpack_device__(self) -> tuple[int, int]:
        raise AssertionError("a tensor is read by its attributes")
