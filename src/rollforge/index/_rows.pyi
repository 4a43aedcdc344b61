from typing import TypeAlias

Finished: TypeAlias = tuple[
    int,
    list[tuple[str, bytes]],
    list[tuple[str, bytes, bytes, bytes]],
    list[tuple[str, bytes]],
    dict[str, tuple[list[str], bytes]],
    dict[str, bytes],
]

Drained: TypeAlias = tuple[bytes, bytes, bytes, bytes, bytes, bytes]

def hash_text(text: bytes | memoryview, /) -> int: ...

class Rows:
    def __init__(self, looked_at: int, starts: bytes, /) -> None: ...
    def take(self, block: memoryview | bytes, first_line: int, offset: int, /) -> tuple[int, bytes]: ...
    def read(
        self, file: int, offset: int, end: int, first_line: int, most: int, /
    ) -> tuple[int, bytes, int]: ...
    def drain(self) -> Drained: ...
    def finish(self) -> Finished: ...
    def __len__(self) -> int: ...
