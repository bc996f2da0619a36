"""How long dispatching waits because nothing more can be staged or published.

Rules of this file:
- Staging that is full or loses files pauses dispatching, ever longer while it goes on; the first result that
  is published ends it.
- An outbox that refuses results pauses it until they are offered again. A further refusal of a job that was
  refused before says nothing new about the outbox.
- While the outbox is not known to work, jobs go one at a time, to learn whether it refuses all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from watcher.core.settle import NS_PER_S

if TYPE_CHECKING:
    from watcher.core.policy import RetryPolicy


class Backpressure:
    """What results that find no place do to the jobs that would make more of them."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._until_ns = 0
        self._staging_failures = 0
        self._outbox_works = True
        self.staging_trouble: str | None = None
        """Why staging took no result, until one was published again."""

    @property
    def until_ns(self) -> int:
        """Dispatching waits until this instant; it may have passed."""
        return self._until_ns

    @property
    def outbox_works(self) -> bool:
        """The last that was heard of the outbox, one refused job's further refusals apart."""
        return self._outbox_works

    def patience_ns(self, failures: int) -> int:
        """The wait after so many failures before this one."""
        policy = self._policy
        wait_s: float = min(policy.publish_retry_max_s, policy.publish_retry_s * 2 ** min(failures, 30))
        return round(wait_s * NS_PER_S)

    def staging_failed(self, now_ns: int, reason: str) -> None:
        """Staging refuses or loses results: give it time."""
        self.staging_trouble = reason
        if now_ns < self._until_ns:
            return
        self._until_ns = now_ns + self.patience_ns(self._staging_failures)
        self._staging_failures += 1

    def outbox_refused(self) -> None:
        """The outbox would not take a result that it had not refused before."""
        self._outbox_works = False

    def wait_for_outbox(self, until_ns: int) -> None:
        """Results are offered again then; no more are made before, unless the outbox took others."""
        if not self._outbox_works:
            self._until_ns = until_ns

    def outbox_resumed(self) -> None:
        """Nothing is refused any more."""
        self._outbox_works = True
        self._until_ns = 0

    def result_published(self) -> None:
        """There is space, and the outbox takes results."""
        self._staging_failures = 0
        self.staging_trouble = None
        if not self._outbox_works:
            self.outbox_resumed()
