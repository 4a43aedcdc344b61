class Rows:
    def take(self, block: memoryview | bytes, first_line: int, offset: int, /) -> tuple[int, bytes]: ...
    def drain(self) -> tuple[bytes, bytes, bytes, bytes, bytes, bytes]: ...
    def finish(
        self,
    ) -> tuple[
        int,
        list[tuple[str, bytes]],
        list[tuple[str, bytes, bytes, bytes]],
        list[tuple[str, bytes]],
        list[str],
        dict[str, bytes],
    ]: ...
    def __len__(self) -> int: ...
