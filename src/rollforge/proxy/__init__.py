"""The recording proxy: programs ask it as they would ask a model server, and every call is kept.

```
server     HTTP for programs          asking    the APIs they speak
session    one rollout's calls        calls     a call as a record, and its line on disk
identity   which items are the same   merging   calls → sequences
attempts   the lines, read again
```

A program finds it through its base URL and key, which hold the rollout's secret. Every call goes through `endpoint.Model`, so the
retry budget, the breaker and the limiter hold for programs too. Starts no program and judges nothing.
"""

from rollforge.proxy.attempts import RecordedAttempt, read_calls, recorded_attempts
from rollforge.proxy.calls import RecordedCall
from rollforge.proxy.merging import Sequence, merge_calls
from rollforge.proxy.proxy_server import RecordingProxy
from rollforge.proxy.session import ProgramSession

__all__ = [
    "ProgramSession",
    "RecordedAttempt",
    "RecordedCall",
    "RecordingProxy",
    "Sequence",
    "merge_calls",
    "read_calls",
    "recorded_attempts",
]
