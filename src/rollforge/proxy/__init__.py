"""The recording proxy: programs call it like a model server, and every call is recorded.

```
proxy_server   HTTP for programs          asking    the APIs they speak
session        one rollout's calls        calls     a call as a record, and its line on disk
same_item      which items are the same   merging   calls → sequences
attempts       the lines, read again
```

A program gets its base URL and key, which contain the rollout's secret. Every call goes through `endpoint.Model`, so the retry
budget, the breaker and the limiter apply to programs too. The proxy starts no programs and does not judge.
"""

from rollforge.proxy.attempts import RecordedAttempt, read_calls, recorded_attempts
from rollforge.proxy.calls import RecordedCall
from rollforge.proxy.merging import Sequence, merge_calls
from rollforge.proxy.proxy_server import RecordingProxy
from rollforge.proxy.session import CALLS_SHARE, ProgramSession

__all__ = [
    "CALLS_SHARE",
    "ProgramSession",
    "RecordedAttempt",
    "RecordedCall",
    "RecordingProxy",
    "Sequence",
    "merge_calls",
    "read_calls",
    "recorded_attempts",
]
