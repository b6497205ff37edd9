"""The doctor: lets every rule look at a rollout, and says how grave what they found is for whom."""

from collections.abc import Iterable

from turnkeep.check.finding import ERROR, PROFILES, Finding, Found, report
from turnkeep.errors import ConfigurationError, TurnkeepError, UnknownRollout
from turnkeep.rollout.view import RolloutView
from turnkeep.store.base import Store


def check_rollout(
    rollout: RolloutView,
    profile: str | None = None,
    *,
    vocabulary: int | None = None,
    experts: int | None = None,
) -> list[Finding]:
    """What trainers and exporters would refuse in a rollout, or drop without a word; empty where all is well.

    `profile` (`nemo-rl`, `trl`, `verl`, `atif`) chooses the rules and severities of one reader; without it every rule
    looks that has a severity of its own, and an error is what breaks the contract or every trainer. `vocabulary` and
    `experts` are the model's numbers of token ids and experts, for the rules that need them. Damage becomes a finding.
    One turn is read at a time.
    Raises ConfigurationError for an unknown profile, or a number that is not positive.
    """
    if profile is not None and profile not in PROFILES:
        raise ConfigurationError(f"there is no profile {profile!r}, only {', '.join(PROFILES)}", field="profile")
    for name, number in (("vocabulary", vocabulary), ("experts", experts)):
        if number is not None and number < 1:
            raise ConfigurationError(f"the number of {name} must be 1 or more, not {number}", field=name)
    from turnkeep.check.walk import walk  # the rules need NumPy

    return [
        report(rule, severity, found, rollout.id)
        for rule, found in walk(rollout, vocabulary, experts)
        if (severity := rule.severities.of(profile)) is not None
    ]


def check_stored(store: Store, rollout: str, profile: str | None = None, **limits: int | None) -> list[Finding]:
    """What `check_rollout` finds in a stored rollout; that it cannot be opened is a finding. Raises UnknownRollout."""
    try:
        view = RolloutView(store, rollout)
    except UnknownRollout:
        raise
    except TurnkeepError as error:
        from turnkeep.check.rollout_rules import unreadable

        found = Found(error.message, error.turn, error.call, error.item, error.field, error.index)
        return [report(unreadable, ERROR, found, rollout)]
    return check_rollout(view, profile, **limits)


def is_fit(findings: Iterable[Finding]) -> bool:
    """Whether no finding is an error: the rollout can be trained on, or exported, by whom it was checked for."""
    return not any(finding.severity is ERROR for finding in findings)
