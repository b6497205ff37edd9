"""The rules, by what they look at, and the page that lists them."""

from collections.abc import Sequence
from typing import Any

from turnkeep.check import rollout_rules, route_rules, sample_rules, tool_rules, turn_rules
from turnkeep.check.finding import PROFILES, Rule

SAMPLE_RULES = (*sample_rules.RULES, *route_rules.RULES)
TURN_RULES = turn_rules.RULES
ROLLOUT_RULES = (*rollout_rules.RULES, *tool_rules.RULES)

CHAPTERS: tuple[tuple[str, Sequence[Rule[Any]]], ...] = (
    ("Token ids and log probs", sample_rules.RULES),
    ("Routed experts", route_rules.RULES),
    ("Turns", turn_rules.RULES),
    ("Tool calls and results", tool_rules.RULES),
    ("Rollouts", rollout_rules.RULES),
)
RULES: tuple[Rule[Any], ...] = tuple(rule for _, rules in CHAPTERS for rule in rules)

_HEAD = """# What `turnkeep check` looks for

Made from the code (`turnkeep.check.rules.rules_page`); a test holds this page equal to it.

A finding names rollout, turn, item, field and index, as far as it has them, and says what to do. With `--for` only the
rules of that reader apply, with its severities: `nemo-rl` is NeMo RL's Gym environment, `trl` is TRL's NeMo Gym
example, `verl` is verl's agent loop, `atif` is a strict ATIF document: its errors are what `turnkeep export atif`
refuses. Without it all rules apply that have a severity under `all`, and an error is what breaks the contract or every
trainer. Exit code 0 says that there is no error, 1 that there is one.

What is known of readers is from their sources and documents as of 2026-08: NeMo RL 7ea279a, NeMo Gym 0.7.0, ATIF RFC
0001. TRL was read as far as its example goes. Of verl it is known that it trains one sequence of tokens and fills
missing routes with zeros; the rest is taken to be as for the others.

`vocabulary` and `experts` are looked at only where they are stated (`--vocabulary`, `--experts`).
"""


def rules_page() -> str:
    """The rules as a Markdown page: docs/rules.md."""
    chapters = "".join(f"\n## {title}\n{''.join(map(_section, rules))}" for title, rules in CHAPTERS)
    return _HEAD + chapters


def _section(rule: Rule[Any]) -> str:
    """One rule: what it holds, how grave it is for whom, where it comes from, what to do."""
    graves = [f"{profile or 'all'}: {rule.severities.of(profile) or '-'}" for profile in (None, *PROFILES)]
    return f"\n### {rule.name}\n\n{rule.says}\n\n- {', '.join(graves)}\n- Source: {rule.source}.\n- {rule.todo}\n"
