"""How many GPUs are enough: more and more of them are tried, until something fits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from clusterkit.core.errors import Problem, UserError
from clusterkit.estimate.advice.recommend import Answer, Candidate, answer_of
from clusterkit.estimate.query.answer import PER_NODE, request_of
from clusterkit.estimate.query.options import EstimateOptions
from clusterkit.estimate.setup import Offload

MOST = 1024
"""The largest number of GPUs that is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """What fits on one number of GPUs; no answer, but a reason, where nothing can be run."""

    gpus: int
    answer: Answer | None = None
    reason: str | None = None

    @property
    def chosen(self) -> Candidate | None:
        """The strategy to take; None where none fits."""
        return self.answer.chosen if self.answer is not None else None

    @property
    def offloads(self) -> bool:
        """Whether that keeps optimizer states outside the GPUs."""
        return self.chosen is not None and self.chosen.setup.offload_optimizer is not Offload.NONE

    @property
    def enough(self) -> bool:
        """Whether something fits, and offloads only where that is asked for."""
        if self.answer is None or self.chosen is None:
            return False
        request = self.answer.request
        return not self.offloads or request.offload is not None or request.strategy is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Smallest:
    """The numbers of GPUs that were tried, and the answer for the one to take.

    That is the first that is enough, which is tried last; where none is, the first on which
    something fits by offloading; where nothing fits on any, the last.
    """

    tries: tuple[Try, ...]
    answer: Answer

    @property
    def gpus(self) -> int:
        """The number that the answer is for."""
        return self.answer.request.gpus

    @property
    def offloaded(self) -> Try | None:
        """The first on which something fits by offloading, where those are fewer."""
        return next((one for one in self.tries if one.offloads and one.gpus < self.gpus), None)


def smallest(options: EstimateOptions) -> Smallest:
    """Return on how many GPUs something fits: doubled each time, with whole nodes among them.

    Raises:
        UserError: options are missing or make no sense, whatever the number of GPUs.
    """
    tries: list[Try] = []
    problems: tuple[Problem, ...] = ()
    gpus, per_node, model = 1, options.gpus_per_node or PER_NODE, None
    while gpus <= MOST:
        try:
            request = request_of(replace(options, gpus=gpus), model=model)
            model, per_node = request.model, request.gpus_per_node
            tries.append(Try(gpus=gpus, answer=answer_of(request)))
        except UserError as error:
            if error.problems == problems:  # it is not about the number
                raise
            problems = error.problems
            tries.append(Try(gpus=gpus, reason=problems[0].message))
        if tries[-1].enough:
            break
        gpus = per_node if gpus < per_node < 2 * gpus else 2 * gpus
    answered = [one.answer for one in tries if one.answer is not None]
    if not answered:
        raise UserError(problems=problems)
    fitting = [one.answer for one in tries if one.answer is not None and one.answer.chosen]
    answer = answered[-1] if tries[-1].enough or not fitting else fitting[0]
    return Smallest(tries=tuple(tries), answer=answer)
