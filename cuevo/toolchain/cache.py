"""The cache of rendered and assembled kernels: a directory of small files, and a level in memory in
front of it.

An entry is found by a key that covers everything that it was made from, so entries never grow old
and are never updated. Writers use a temporary name and rename it; any number of processes may share
a directory. A reader believes an entry only if its checksum, which covers the key as well, is
right: one that is cut off, damaged, or lies under another entry's name is as good as absent, and
will be written anew. The checksum guards against accidents; keep the directory to yourself as you
would any directory of programs.
"""

import hashlib
import os
import tempfile
import threading
import warnings
from pathlib import Path

_MAGIC = b"cuevo cache 1\n"
_DIGEST_SIZE = hashlib.sha256().digest_size
_MEMORY_ENTRIES = 1024


class Cache:
    """Bytes by key, in memory and on disk.

    `directory` is made when first written to. Without one it is that of the environment variable
    ``CUEVO_CACHE_DIR``, else ``cuevo`` in the user's cache directory, as they stand at each access;
    where there is neither, the memory level alone is used.
    """

    def __init__(self, directory: Path | str | None = None) -> None:
        self._directory = None if directory is None else Path(directory)
        self._memory: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._warned = False

    @property
    def directory(self) -> Path | None:
        """Where entries are kept on disk."""
        return user_directory() if self._directory is None else self._directory

    def path(self, key: str) -> Path | None:
        """The file of an entry, whether it exists or not."""
        name = hashlib.sha256(key.encode()).hexdigest()
        directory = self.directory
        return None if directory is None else directory / name[:2] / f"{name[2:]}.bin"

    def get(self, key: str) -> bytes | None:
        """The content stored under `key`, or None where there is none that can be trusted."""
        with self._lock:
            content = self._memory.get(key)
        if content is not None:
            return content
        path = self.path(key)
        if path is None:
            return None
        try:
            entry = path.read_bytes()
        except OSError:
            return None
        content = _unwrap(key, entry)
        if content is not None:
            self._remember(key, content)
        return content

    def put(self, key: str, content: bytes) -> None:
        """Store `content` under `key`; of a directory that cannot be written, warn once."""
        self._remember(key, content)
        path = self.path(key)
        if path is None:
            return
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_wrap(key, content))
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise
        except OSError as error:
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"the kernel cache cannot be written, so each process begins anew: {error}; "
                    "set CUEVO_CACHE_DIR to a directory of yours",
                    RuntimeWarning,
                    stacklevel=2,
                )

    def forget(self) -> None:
        """Empty the memory level."""
        with self._lock:
            self._memory.clear()

    def _remember(self, key: str, content: bytes) -> None:
        with self._lock:
            while len(self._memory) >= _MEMORY_ENTRIES:
                del self._memory[next(iter(self._memory))]
            self._memory[key] = content


default = Cache()
"""The cache that the package uses unless it is told otherwise."""


def user_directory() -> Path | None:
    """``CUEVO_CACHE_DIR``, or ``cuevo`` in the user's cache directory; None without a home."""
    if chosen := os.environ.get("CUEVO_CACHE_DIR"):
        return Path(chosen)
    base = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME")
    if base and Path(base).is_absolute():
        return Path(base) / "cuevo"
    try:
        return Path.home() / ".cache" / "cuevo"
    except RuntimeError:
        return None


def _wrap(key: str, content: bytes) -> bytes:
    return _MAGIC + _digest(key, content) + content


def _unwrap(key: str, entry: bytes) -> bytes | None:
    begin = len(_MAGIC) + _DIGEST_SIZE
    content = entry[begin:]
    return content if entry[:begin] == _MAGIC + _digest(key, content) else None


def _digest(key: str, content: bytes) -> bytes:
    return hashlib.sha256(hashlib.sha256(key.encode()).digest() + content).digest()
