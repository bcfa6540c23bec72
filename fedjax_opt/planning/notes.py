"""What a person should know before acting on a plan, in sentences."""

from typing import Any

from fedjax_opt.planning.setting import constants_of


def notes_of(plan: Any) -> tuple[str, ...]:
    """The notes of a plan: what was clipped, what does not hold, what the bound cannot see."""
    if plan.bound is None:
        return (
            "Without constants there is no bound: K and eta are what was given. K-rounds is"
            " recommended for the paper's experiments, in which it matched or beat a fixed K with"
            " fewer steps.",
        )
    return tuple(
        note
        for note in (
            _rate(plan),
            _steps(plan),
            _cohort(plan),
            _schedule(plan),
            _negative_loss(plan),
        )
        if note
    )


def _rate(plan):
    limit = 0.25 / float(constants_of(plan.setting, plan.cohort_size).smoothness)
    if "eta <= 1/(4L)" in plan.bound.violated():
        return (
            f"eta = {plan.learning_rate:.3g} is above 1/(4L) = {limit:.3g}: the bound does not hold"
            " there, so its value promises nothing, and steps that long may diverge. Lower the"
            " learning rate, or check L."
        )
    if plan.given.learning_rate is None and plan.rate_clipped:
        return (
            f"The formula alone would take eta = {plan.unclipped_rate:.3g}; eta is kept at 1/(4L) ="
            f" {limit:.3g}, up to which the bound holds."
        )
    return ""


def _steps(plan):
    if plan.given.local_steps is not None:
        return ""
    c = constants_of(plan.setting, plan.cohort_size)
    if plan.real_steps < 1:
        flat = float(c.noise) == 0 and float(c.heterogeneity) == 0
        why = (
            " With noise and heterogeneity both 0 and eta free, a smaller eta is always better for it"
            " than a larger K."
            if flat and plan.given.learning_rate is None
            else ""
        )
        return (
            f"The bound's best real K is {plan.real_steps:.2g}, below 1: by the bound, local steps"
            f" cost more by drift than they save by communication.{why} It is a worst case; losses in"
            " practice often bear a larger K."
        )
    if plan.local_steps == plan.given.max_local_steps:
        return (
            f"K is at its limit, max_local_steps = {plan.local_steps}; the bound would take more."
        )
    return ""


def _cohort(plan):
    if len(plan.cohorts) < 2:
        return ""
    chosen = next(c for c in plan.cohorts if c.cohort_size == plan.cohort_size)
    best = min(plan.cohorts, key=lambda choice: choice.bound)
    largest = plan.cohorts[-1]
    if best.cohort_size == chosen.cohort_size:
        verdict = f"N = {chosen.cohort_size} has the smallest bound of those compared."
    else:
        verdict = (
            f"N = {chosen.cohort_size} is the smallest cohort whose bound is as good as that of N ="
            f" {best.cohort_size}, up to {chosen.bound / best.bound - 1:.1%}."
        )
    if largest.cohort_size != chosen.cohort_size:
        longer = largest.round_seconds / chosen.round_seconds
        verdict += (
            f" N = {largest.cohort_size} would send"
            f" {largest.total_bytes / chosen.total_bytes:.2g} times the bytes"
            + (f", and wait {longer:.2g} times as long for its slowest." if longer > 1.01 else ".")
        )
    if plan.setting.client_variance == 0:
        verdict += (
            " The bound sees N only in the drift's weight 8 + 4/N; what a mean over few clients adds"
            " in noise is not in it unless the variance of a client's gradient is given."
        )
    return verdict


def _schedule(plan):
    rows = {row.name: row for row in plan.forecasts}
    if plan.schedule != "fixed":
        return (
            f"{plan.schedule} has a smaller bound than any fixed whole K: it comes closer to the real"
            f" K* = {plan.real_steps:.3g} in the mean."
        )
    decaying = rows["K-rounds"]
    if plan.local_steps == 1 or decaying.bound is None:
        return ""
    return (
        "For a run of known length a fixed K has the smallest bound. If it may be stopped at any time,"
        f" {decaying.use} is near the best at every moment, and at the end"
        f" {decaying.bound / rows['fixed'].bound - 1:.0%} above it."
        f" local_steps=fo.controllers.steps_by_error({plan.local_steps}) follows the loss instead."
    )


def _negative_loss(plan):
    if "F* >= 0" not in plan.bound.violated():
        return ""
    return "F* is negative: the bound needs a loss that never is. Add a constant to the loss."
