from typing import TypeAlias

Finished: TypeAlias = tuple[
    int,
    list[tuple[str, bytes]],
    list[tuple[str, bytes, bytes, bytes]],
    list[tuple[str, bytes]],
    dict[str, tuple[list[str], bytes]],
    dict[str, bytes],
]

SOURCE_DIGEST: str

def leading_keys(block: memoryview | bytes | bytearray, /) -> bytes: ...

class Rows:
    def take(self, block: memoryview | bytes, first_line: int, offset: int, /) -> tuple[int, bytes]: ...
    def drain(self) -> tuple[bytes, bytes, bytes, bytes, bytes]: ...
    def finish(self) -> Finished: ...
    def __len__(self) -> int: ...
