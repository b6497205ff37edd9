"""The NeMo Gym adapter: one rollout of a NOOA agent, run, kept exactly, resumed, verified and answered as bytes.

The server itself is `responses_api_agents/nooa_agent/app.py`. Modules, in the order in which a request meets them:
`config` (what is checked at start), `identity` (which rollout a request is about), `episode` (running the agent),
`task` (the default agent), `tools` and `resources` (the resources server's tools as the agent's methods), `hop` (what
Gym's own models lose), `answer` (the response and the row, as bytes), `failures` (what a run that failed is called),
`observe` (Gym's observations, where it has them), `service` (a whole `/run` and `/v1/responses`), `http` (the
service behind Starlette).

Needs the extra `gym`. NeMo Gym and NOOA, whose imports take seconds, are imported by what uses them.
"""

import turnkeep.nooa  # noqa: F401 - before nooa itself: it keeps litellm off the network
