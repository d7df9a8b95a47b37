"""Checkpoints of a run: whole states by step, written atomically by orbax, found again by listing.

Writing happens beside the training: `save` copies the state off the devices and returns. At most one write
is under way; the next `save`, a look at what there is and the end wait for it, and raise its error.
"""

from collections.abc import Sequence
from typing import Any, Self

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from ladder.moe.mesh import in_every_process, of_first_process
from ladder.train.step import State

NEWEST = 2  # checkpoints that are always kept: a torn or unlucky newest one leaves its predecessor


class Damaged(ValueError):
    """A run has checkpoints and none can be read."""


class Checkpoints:
    """The checkpoint folder of one run: a path, or any URL that orbax takes. A context manager.

    A step is listed only once it is complete; what a killed process left half-written is removed on
    opening. The newest two are kept, and every one that was saved with `keep`. With several processes all
    of them open, save and restore together, in a folder that all of them see.
    """

    def __init__(self, where: str):
        options = ocp.CheckpointManagerOptions(preservation_policy=_NewestAndKept())
        self.where = where
        self._manager = ocp.CheckpointManager(where, options=options)

    def newest(self) -> int | None:
        """Completed updates of the newest complete checkpoint; None when there is none yet."""
        self._manager.wait_until_finished()
        return self._manager.latest_step()

    def steps(self) -> list[int]:
        """Completed updates of every complete checkpoint."""
        self._manager.wait_until_finished()
        return list(self._manager.all_steps())

    def save(self, state: State, step: int, *, keep: bool = False) -> None:
        """Begin to write the state after `step` updates, which may be donated as soon as this returns;
        nothing happens when that step is there already."""
        if step != self.newest():
            self._manager.save(step, args=ocp.args.StandardSave(state), metrics={"keep": keep})

    def resume(self, state: State) -> tuple[State, int, str]:
        """(state, its completed updates, what was lost) of the newest checkpoint that can be read; `state` as
        it is and 0 where there is none.

        One that cannot be read makes way for an older one, and is deleted then, as its step will be saved
        again. With several processes the first one's listing decides, and all go on from the same step: they
        read the same files, and find the same ones damaged. Raises Damaged when none can be read.
        """
        unread: dict[int, str] = {}
        while step := self._before(min(unread, default=None)):
            restored, trouble = None, ""
            try:
                restored = self.restore(state, step)
            except Exception as error:  # orbax and its storage layers raise what they like
                trouble = f"{type(error).__name__}: {' '.join(str(error).split()):.200}"
            if restored is None or not in_every_process(not trouble):
                unread[step] = trouble or "another process could not read it"
                continue
            for damaged in unread:
                self._manager.delete(damaged)
            steps = ", ".join(map(str, unread))
            lost = f"checkpoint of step {steps} cannot be read: resumed before it" if unread else ""
            return restored, step, lost
        if unread:
            raise Damaged(
                f"no checkpoint in {self.where} can be read (step {max(unread)}: {unread[max(unread)]}): "
                "restore the folder from a copy, or delete it to train the run from its beginning"
            )
        return state, 0, ""

    def _before(self, step: int | None) -> int:
        """The newest step there is before `step`, 0 for none: what the first process finds, on every one."""
        (found,) = of_first_process([max((s for s in self.steps() if step is None or s < step), default=0)])
        return found

    def restore(self, like: State, step: int) -> State:
        """The exact state saved at `step`, laid out on the devices as `like` is."""
        shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), like)
        restored: Any = self._manager.restore(step, args=ocp.args.StandardRestore(shapes))
        return restored

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an error the other processes may never come to the barrier that ends a write.
        if kind is None or jax.process_count() == 1:
            self._manager.close()


class _NewestAndKept:
    def should_preserve(
        self,
        checkpoints: Sequence[checkpoint_managers.PolicyCheckpointInfo],
        *,
        context: checkpoint_managers.PreservationContext,
    ) -> Sequence[bool]:
        def kept(metrics: Any) -> bool:
            return bool(metrics and metrics.get("keep"))

        first = len(checkpoints) - NEWEST
        return [i >= first or kept(info.metrics) for i, info in enumerate(checkpoints)]
