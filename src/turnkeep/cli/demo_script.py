"""What the policy of `turnkeep demo` says, in the form that `turnkeep serve-policy --script` reads."""

import json
from typing import Any

_PLACES = ("Oslo", "Lima", "Nairobi", "Osaka", "Quito", "Tromsø", "Perth", "Cusco", "Hanoi", "Bergen")


def make_demo_script(turns: int) -> dict[str, Any]:
    """A script of `turns` turns: reasoning, text in blocks, calls of the agent's tools, at last the result.

    Every third turn makes two calls. What is asked after that gets a summary, as JSON split over two text blocks.
    """
    steps: list[list[dict[str, Any]]] = []
    for number in range(turns - 1):
        place, other = _PLACES[number % len(_PLACES)], _PLACES[(number + 3) % len(_PLACES)]
        look = f"metres = await self.height({place!r})\nprint(await self.note({place!r}, metres), metres)"
        step: list[dict[str, Any]] = [
            {"reasoning": f"{place} comes next; {number} looked up so far."},
            {"text": [f"Looking up {place}", " and writing it down."]},
            {"call": "execute_python", "arguments": {"code": look}},
        ]
        if number % 3 == 1:
            also = {"code": f"print(await self.height({other!r}))"}
            step.append({"call": "execute_python", "arguments": json.dumps(also, indent=1)})
        steps.append(step)
    steps.append([{"reasoning": "That is all."}, {"call": "return_result", "arguments": f'{{"result":  {turns - 1}}}'}])
    summary = [{"reasoning": "The notes say it."}, {"text": ['{"places": 3, "hig', 'hest": "Cusco"}']}]
    return {"made_up": ["prefill_", "synthetic_", "predict_", "codeact_inline_"], "steps": steps, "after": summary}
