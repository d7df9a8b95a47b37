"""The in-process backend: a run is a thread of this process. For tests, debuggers and single runs."""

import queue
import threading

from ladder.cluster.work import Ended, Job, Work


class InProcess:
    """Runs one launch at a time on the devices that this process sees."""

    def __init__(self, cpus: int = 1):
        self.cpus = cpus
        self._works: dict[str, Work] = {}
        self._ended: queue.Queue[tuple[Work, Ended]] = queue.Queue()

    def start(self, job: Job) -> None:
        work = Work(job)
        self._works[job.run] = work
        threading.Thread(target=lambda: self._ended.put((work, work.run())), daemon=True).start()

    def poll(self, timeout_s: float) -> list[Ended]:
        try:
            work, ended = self._ended.get(timeout=timeout_s)
        except queue.Empty:
            return []
        if self._works.get(ended.run) is not work:  # it was killed
            return []
        del self._works[ended.run]
        return [ended]

    def peek(self) -> dict[str, dict]:
        return {name: work.peek() for name, work in self._works.items()}

    def kill(self, run: str) -> None:
        """A thread cannot be ended from outside: it is asked to leave and no longer heard. Its attempt is
        fenced by the next one, like any leftover's."""
        if work := self._works.pop(run, None):
            work.stop()

    def stop(self) -> None:
        for work in self._works.values():
            work.stop()

    def close(self) -> None:
        pass
