"""The doctor against a reader of its own kind, over rows with any faults; and the page that lists the rules."""

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from planting import Fields, check_in_memory, experts, sound

from turnkeep.check.doctor import is_fit
from turnkeep.check.finding import PROFILES
from turnkeep.check.rules import RULES, rules_page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "rules.md"


def nemo_rl_takes(made: list[Fields]) -> bool:
    """What NeMo RL's Gym environment does with a row's items: plain lists, written from its description."""
    seen: list[int] = []
    replay = any(item.get("routed_experts") is not None for item in made if item["generation_token_ids"])
    trained = 0
    for item in made:
        if not item["generation_token_ids"]:
            continue
        prompt, generation, routes = (
            item[name] for name in ("prompt_token_ids", "generation_token_ids", "routed_experts")
        )
        if prompt[: len(seen)] != seen:
            return False
        seen = prompt + generation
        if replay and (routes is None or len(routes) < len(seen)):
            return False
        trained += 1
    return trained > 0


@st.composite
def rows(draw: st.DrawFn) -> list[Fields]:
    """A rollout, sound but for some faults that capture lets pass."""
    made = sound(draw(st.integers(1, 4)), draw(st.integers(1, 3)))
    for _ in range(draw(st.integers(0, 2))):
        item = made[draw(st.integers(0, len(made) - 1))]
        total = len(item["prompt_token_ids"]) + len(item["generation_token_ids"])
        match draw(st.sampled_from(["id", "rows", "none", "silent", "short", "longer"])):
            case "id" if item["prompt_token_ids"]:
                item["prompt_token_ids"][draw(st.integers(0, len(item["prompt_token_ids"]) - 1))] = 7777
            case "rows":
                item["routed_experts"] = experts(draw(st.integers(0, total + 2)))
            case "none":
                item["routed_experts"] = None
            case "silent":
                item["generation_token_ids"], item["generation_log_probs"] = [], []
            case "short":
                del item["prompt_token_ids"][draw(st.integers(0, len(item["prompt_token_ids"]))) :]
            case "longer":
                item["prompt_token_ids"].append(8888)
    return made


@given(rows())
def test_the_doctor_and_the_trainer_agree(made: list[Fields]) -> None:
    """Whatever is wrong with a rollout, it has an error for NeMo RL exactly where NeMo RL's reader refuses it."""
    assert is_fit(check_in_memory(made, "nemo-rl")) == nemo_rl_takes(made)


@given(rows(), st.sampled_from(PROFILES))
def test_a_profile_chooses_among_the_findings(made: list[Fields], profile: str) -> None:
    """A profile finds what is found without one, less the rules that its reader does not have."""

    def found(profile: str | None) -> list[Any]:
        return [(each.rule, each.turn, each.index, each.message) for each in check_in_memory(made, profile)]

    kept = {rule.name for rule in RULES if rule.severities.of(profile) is not None}
    assert found(profile) == [each for each in found(None) if each[0] in kept]


def test_every_rule_has_a_name_of_its_own_and_says_everything() -> None:
    """Names are unique; each rule has a sentence, what to do, and a source."""
    assert len({rule.name for rule in RULES}) == len(RULES) > 40
    for rule in RULES:
        assert rule.says.endswith((".", ")."))
        assert rule.todo.endswith(".")
        assert rule.source
        assert not rule.source.endswith(".")


def test_the_page_of_rules_is_what_the_code_says() -> None:
    """docs/rules.md is, letter for letter, what `turnkeep.check.rules.rules_page` makes."""
    assert PAGE.read_text(encoding="utf-8") == rules_page()
