"""Verdicts of a group verifier, which needs all samples of a task: judged after the last rollout of a collection."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rollforge.errors import Exit
from rollforge.steps.collect import Collection, CollectResult, ShardedCollection
from rollforge.steps.verify import Verification, VerifyOptions


async def with_group_verdicts(
    collection: Collection | ShardedCollection,
    result: CollectResult,
    *,
    announce: Callable[[], None] = lambda: None,
) -> CollectResult:
    """Judge the groups of a whole, finished collection, and count the verdicts; any other result is returned unchanged.

    A single shard leaves its groups to the whole run. `announce` is called before the first group is judged.
    """
    if not collection.is_judged_later or result.ending != "done" or result.shard is not None:
        return result
    announce()
    options = collection.options
    summary = await Verification(
        VerifyOptions(
            run=options.out,
            verifier=options.verifier,
            options=options.verifier_options,
            timeout=options.verify_timeout_s,
            judge_price=options.judge_price,
        )
    ).run()
    code = Exit.DONE if summary.state == "done" else Exit.INCOMPLETE
    return msgspec.structs.replace(result, exit_code=code, unjudged=summary.unjudged + summary.failed)
