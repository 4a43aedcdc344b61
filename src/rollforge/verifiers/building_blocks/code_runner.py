"""Program inside the sandbox: executes the answer's code on each test input.

It runs as source with the globals `receive`, `send` and `pipes`, and imports nothing from rollforge. It never gets an expected
output, and only reports what the code printed or returned, so code that takes control of it gains nothing.

Messages back: `B` the sandbox is up · `R` ready · `O` the program ended · `V`+JSON a call's value ·
`W`+text a value that is no JSON · `E`+text an error. What a program prints goes straight to the standard
output, which the parent reads.
"""

from __future__ import annotations

import builtins
import marshal
import os
import sys

TYPE_CHECKING = False  # `typing` is not imported: it would cost every verdict its start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, ModuleType
    from typing import Any

    Namespace = dict[str, Any]
    """The globals of a program."""

receive: Callable[[], bytes] = globals().get("receive")  # type: ignore[assignment]
send: Callable[[bytes], None] = globals().get("send")  # type: ignore[assignment]
pipes: tuple[int, int] = globals().get("pipes", (-1, -1))

STDIN_FILE = ".stdin"
RECURSION_LIMIT = 50_000
LONGEST_ERROR = 600


def main() -> None:
    """Receive one setup message, then one message per test until the pipe closes."""
    send(b"B")
    code, function, prelude, may_kill = marshal.loads(receive())
    sys.setrecursionlimit(RECURSION_LIMIT)
    sys.set_int_max_str_digits(RECURSION_LIMIT)
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]  # else added by `site`
    namespace = prelude_namespace(prelude)
    try:
        if function is None:
            compiled = compile_program(code)
        else:
            call = find_function(code, function, namespace)
    except BaseException as error:  # noqa: BLE001  (the answer's code may raise anything)
        send(b"E" + describe(error))
        return
    send(b"R")
    while True:
        message = receive()
        is_last, test = message[:1] == b"L", message[1:]
        if function is not None:
            send(call_function(call, test))
        elif is_last:
            run_here(compiled, namespace, open_stdin(test))
        else:
            send(run_apart(compiled, namespace, open_stdin(test), may_kill))


def prelude_namespace(prelude: list[tuple[str, str | None]]) -> Namespace:
    """Names that a program may use without importing them: (module, name), or (module, None) for a module."""
    namespace: Namespace = {}
    for module_name, name in prelude:
        module = __import__(module_name)
        if name is None:
            namespace[module_name] = module
        elif hasattr(module, name):
            namespace[name] = getattr(module, name)
    return namespace


def compile_program(code: str) -> CodeType:
    """Compile the program; with a `return` outside any function, it is compiled as a function body."""
    try:
        return compile(code, "<answer>", "exec", dont_inherit=True)
    except SyntaxError as error:
        if "'return' outside function" not in str(error):
            raise
        import ast

        tree = ast.parse("def _program(): pass\n_program()")
        tree.body[0].body = ast.parse(code).body  # type: ignore[attr-defined]
        return compile(ast.fix_missing_locations(tree), "<answer>", "exec", dont_inherit=True)


def new_module(name: str, namespace: Namespace) -> ModuleType:
    """Register the namespace as an importable module."""
    module = type(sys)(name)
    module.__dict__.update(namespace)
    sys.modules[name] = module
    return module


def open_stdin(text: bytes) -> int:
    """An open file with `text`, as standard input of the program."""
    stdin = os.open(STDIN_FILE, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    left = memoryview(text)
    while left:
        left = left[os.write(stdin, left) :]
    os.lseek(stdin, 0, os.SEEK_SET)
    return stdin


def run_apart(compiled: CodeType, namespace: Namespace, stdin: int, may_kill: bool) -> bytes:
    """Run the program in a forked process, so that the next test starts from a clean state."""
    pid = os.fork()
    if pid == 0:
        for pipe in pipes:
            os.close(pipe)
        error = be_program(compiled, namespace, stdin)
        if error is not None:
            os.write(2, describe(error))
        os._exit(error is not None)
    os.close(stdin)
    status = os.waitpid(pid, 0)[1]
    if may_kill:
        try:
            os.kill(-1, 9)  # processes that the program left behind: they could print into the next test
            while os.waitpid(-1, 0)[0]:
                pass
        except OSError:
            pass
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return b"E" + f"killed by signal {-code}".encode()
    return b"O" if code == 0 else b"E"


def run_here(compiled: CodeType, namespace: Namespace, stdin: int) -> None:
    """Run the program in this process, which ends with it; a fork would cost a third of the start-up time."""
    error = be_program(compiled, namespace, stdin)
    send(b"O" if error is None else b"E" + describe(error))
    os._exit(error is not None)


def be_program(compiled: CodeType, namespace: Namespace, stdin: int) -> BaseException | None:
    """Run the program and exit like an interpreter: join threads, run exit functions, flush output."""
    try:
        os.dup2(stdin, 0)
        os.close(stdin)
        try:  # noqa: SIM105  (contextlib would cost its import)
            exec(compiled, new_module("__main__", namespace).__dict__)
        except SystemExit:
            pass
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        if "atexit" in sys.modules:
            sys.modules["atexit"]._run_exitfuncs()
        sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001  (the answer's code may raise anything)
        return error
    return None


def find_function(code: str, name: str, namespace: Namespace) -> Any:
    """The function to call: a method of `Solution` if there is one, else a function of the module."""
    module = new_module("answer", namespace)
    exec(compile(code, "<answer>", "exec", dont_inherit=True), module.__dict__)
    owner = module.__dict__["Solution"]() if "class Solution" in code else module
    return getattr(owner, name)


def call_function(function: Any, test: bytes) -> bytes:
    """Call the function with one JSON value per line as arguments."""
    import json

    arguments = [json.loads(line) for line in test.decode().split("\n")]
    try:
        value = function(*arguments)
        item = getattr(value, "item", None)
        if getattr(value, "shape", None) == () and callable(item):  # a numpy number
            value = item()
        try:
            return b"V" + json.dumps(value).encode()
        except (TypeError, ValueError, RecursionError):  # what cannot be JSON is a wrong answer
            return b"W" + describe(value)
    except BaseException as error:  # noqa: BLE001  (the answer's code may raise anything)
        return b"E" + describe(error)


def describe(thing: object) -> bytes:
    """Describe an error or a value; never raises, even if its own methods do."""
    try:
        text = f"{type(thing).__name__}: {thing}" if isinstance(thing, BaseException) else repr(thing)
        return text[:LONGEST_ERROR].encode("utf-8", "replace")
    except BaseException:  # noqa: BLE001  (its own __str__ may raise anything)
        return type(thing).__name__.encode("utf-8", "replace")


if __name__ == "runner":
    main()
