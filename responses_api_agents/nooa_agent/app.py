"""The Gym agent server: a NOOA agent whose every turn is kept, and whose rollouts go on where they were cut short.

The keys of an instance are the fields of `TurnkeepAgentConfig`; those of the `nooa` block are `NooaConfig`'s. Run by
`gym env start`, or as `python app.py` with what Gym hands to a server in its environment.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from fastapi import Body, FastAPI, Request, Response
from nemo_gym.base_resources_server import AggregateMetrics, AggregateMetricsRequest
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent
from nemo_gym.config_types import ModelServerRef, ResourcesServerRef
from nemo_gym.global_config import UV_VENV_DIR_KEY_NAME, get_first_server_config_dict
from nemo_gym.server_utils import get_response_json, is_nemo_gym_fastapi_entrypoint, raise_for_status
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from turnkeep.errors import ConfigurationError
from turnkeep.gym.config import (
    STORE,
    TASK_ADAPTER,
    TASK_AGENT,
    Setup,
    check_sampling,
    check_servers,
    check_workers,
    faults_in_words,
    open_configured_store,
    read_invocation,
)
from turnkeep.gym.http import to_response, while_connected
from turnkeep.gym.service import Around, answer_responses, answer_run, error_reply, read_responses, read_run
from turnkeep.history.scope import DEFAULT_ALIAS
from turnkeep.store.base import Store


class NooaConfig(BaseModel):  # type: ignore[misc, unused-ignore]
    """How the agent is made and called."""

    model_config = ConfigDict(extra="forbid")

    agent_class: str = TASK_AGENT
    """`module.path:ClassName` of a subclass of `nooa.Agent`."""
    invocation_adapter: str = TASK_ADAPTER
    """`module.path:function_name` of an async function, called with the agent and the Responses request."""
    execution_mode: Literal["embedded", "sandboxed"] = "embedded"
    """`sandboxed` is a name for what does not exist yet."""
    init_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the class, besides `llm`."""


class TurnkeepAgentConfig(BaseResponsesAPIAgentConfig):  # type: ignore[misc, unused-ignore]
    """The keys of an instance of this server. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    resources_server: ResourcesServerRef
    model_server: ModelServerRef
    nooa: NooaConfig = Field(default_factory=NooaConfig)
    max_policy_calls: int = Field(default=10, gt=0)
    """How many policy calls a rollout may make; then it is graded as it stands."""
    run_timeout_secs: float = Field(default=2100, gt=0)
    """How long a run may take, in seconds; one that takes longer is a failure that Gym does not try again."""
    model: str = Field(default=DEFAULT_ALIAS, min_length=1)
    """The alias of the policy. With the model server's name it is the scope under which turns replay exactly."""
    sampling: dict[str, Any] = Field(default_factory=dict)
    """Members of every policy request, such as `temperature`: they win over NOOA's, a row's own win over them."""
    store: str = Field(default=STORE, min_length=1)
    """Where turns and evidence are kept: a path, from where Gym was started, or a URL such as `sqlite:////absolute.db`."""
    embed: Literal["archive", "reference"] = "reference"
    """What NOOA's events hold of a turn: all of it, or its digest."""
    on_malformed: Literal["raise", "gap"] = "raise"
    """Whether a response that breaks the rules for training fields ends the rollout, or is kept without them."""
    prefix_guard: Literal["withhold", "send"] = "withhold"
    """Whether training fields are kept back from a request whose prefix a server would splice wrongly, or sent."""
    resume: bool = True
    """Whether a run that the store holds, not answered yet, is gone on with; else every run is a new rollout."""
    datasets: list[Any] | None = None
    """Gym's own, which the server does not read."""
    description: str | None = None
    """Gym's own, as `gym list agents` shows it."""


class TurnkeepAgent(SimpleResponsesAPIAgent):  # type: ignore[misc, unused-ignore]
    """Answers `/run` and `/v1/responses`. `close` closes its store; so does the end of its web server."""

    ray_enabled: ClassVar[bool | None] = False  # newer generations ask for it; older ones do not look
    config: TurnkeepAgentConfig
    _setup: Setup = PrivateAttr()
    _store: Store = PrivateAttr()
    _answered: set[str] = PrivateAttr(default_factory=set)

    def model_post_init(self, context: Any, /) -> None:
        """Check all that can be checked before the first request. Raises ConfigurationError."""
        super().model_post_init(context)
        config = self.config
        known = getattr(self.server_client, "global_config_dict", None)
        references = {key: getattr(config, key) for key in ("resources_server", "model_server")}
        if isinstance(known, Mapping):  # Gym's unit tests give a client that knows no servers
            check_servers(known, {key: (ref.type, ref.name) for key, ref in references.items()})
        check_workers(config.num_workers, resume=config.resume)
        check_sampling(config.sampling)
        nooa = config.nooa
        self._setup = Setup(
            model_server=config.model_server.name,
            invocation=read_invocation(
                nooa.agent_class, nooa.invocation_adapter, nooa.execution_mode, nooa.init_kwargs
            ),
            model=config.model,
            max_policy_calls=config.max_policy_calls,
            run_timeout_secs=config.run_timeout_secs,
            sampling=config.sampling,
            embed=config.embed,
            on_malformed=config.on_malformed,
            prefix_guard=config.prefix_guard,
            resume=config.resume,
        )
        # Gym starts a server in the server's own folder, often in site-packages, and says where it was itself started
        self._store = open_configured_store(config.store, (known or {}).get(UV_VENV_DIR_KEY_NAME) or ".")

    def close(self) -> None:
        """Close the store. Twice does no harm."""
        self._store.close()

    def setup_webserver(self) -> FastAPI:
        """Gym's routes, and the closing of the store at the end."""
        app: FastAPI = super().setup_webserver()
        app.router.on_shutdown.append(self.close)
        return app

    async def run(self, request: Request) -> Response:
        """One rollout: seed, episode, verify."""
        try:
            asked = read_run(await request.body(), request.cookies)
            around = self._around(_path(self, "url_path_for_run", asked.row))
        except ValueError as error:
            return to_response(error_reply(422, str(error), "invalid_request_error"))
        return await while_connected(request, answer_run(around, asked))

    async def responses(self, request: Request) -> Response:
        """One episode, neither seeded nor verified."""
        try:
            rollout = request.path_params.get("rollout_id")
            asked = read_responses(await request.body(), request.cookies, rollout)
        except ValueError as error:
            return to_response(error_reply(422, str(error), "invalid_request_error"))
        around = self._around(_path(self, "url_path_for_request", request))
        return await while_connected(request, answer_responses(around, asked))

    async def aggregate_metrics(self, body: AggregateMetricsRequest = Body()) -> AggregateMetrics:  # noqa: B008
        """The resources server's metrics, as Gym's own agents give them."""
        answer = await self.server_client.post(
            server_name=self.config.resources_server.name, url_path="/aggregate_metrics", json=body
        )
        await raise_for_status(answer)
        return AggregateMetrics.model_validate(await get_response_json(answer))

    def _around(self, model_path: str) -> Around:
        config = self.config
        model = get_first_server_config_dict(self.server_client.global_config_dict, config.model_server.name)
        skipped = getattr(config, "skip_verification", False)
        return Around(
            self._setup,
            self._store,
            model_url=self._base_url(config.model_server.name) + model_path,
            resources_url=self._base_url(config.resources_server.name),
            ids_expected=bool(model.get("return_token_id_information", False)),
            skip_reward=float(config.skip_verification_reward) if skipped else None,
            answered=self._answered,
        )

    def _base_url(self, name: str) -> str:
        place = get_first_server_config_dict(self.server_client.global_config_dict, name)
        return str(self.server_client._build_server_base_url(place))


def _path(server: TurnkeepAgent, helper: str, of: Any) -> str:
    """The path of a policy call; generations of Gym with a rollout URL have a helper that puts the rollout into it."""
    make = getattr(server, helper, None)
    return "/v1/responses" if make is None else str(make("/v1/responses", of))


def in_words(error: ValueError) -> str:
    """What is wrong with a configuration, in one line."""
    return faults_in_words(error.errors()) if isinstance(error, ValidationError) else str(error)


def main() -> FastAPI | None:
    """Serve as Gym does it. What is wrong with the configuration is said in a line, with exit code 2."""
    try:
        app: FastAPI | None = TurnkeepAgent.run_webserver()
    except (ValidationError, ConfigurationError) as error:
        print(f"turnkeep agent: {in_words(error)}", file=sys.stderr)
        sys.exit(2)
    return app


if __name__ == "__main__":
    main()
elif is_nemo_gym_fastapi_entrypoint(str(Path(__file__))):
    app = main()
