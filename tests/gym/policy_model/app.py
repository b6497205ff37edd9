"""A Gym model server that hands bytes on: to the embedded policy, and back, as far as the Gym generation lets it.

Gym 0.4.0 lets all of them pass. Gym 0.7.0 validates a request with its own models first and then lets it pass.
Gym's session cookie decides which of the policy's sessions a request belongs to, as in Gym's own vllm_model: an agent
that loses the cookie begins a new session, and the policy's `/stats` show it.
"""

from typing import Any, ClassVar

import httpx
from fastapi import Body, FastAPI, Request, Response
from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.server_utils import SESSION_ID_KEY
from pydantic import PrivateAttr


class PolicyModelConfig(BaseResponsesAPIModelConfig):  # type: ignore[misc]
    """Where the policy is: `base_url`, without `/v1`."""

    base_url: str


class PolicyModel(SimpleResponsesAPIModel):  # type: ignore[misc]
    """Sends each request's body to the policy and gives the answer's status, body and type."""

    ray_enabled: ClassVar[bool | None] = False  # newer generations ask for it; older ones do not look
    config: PolicyModelConfig
    _sessions: dict[str, httpx.AsyncClient] = PrivateAttr(default_factory=dict)

    def setup_webserver(self) -> FastAPI:
        """Add the closing of the connections to Gym's routes."""
        app: FastAPI = super().setup_webserver()
        app.router.on_shutdown.append(self.close)
        return app

    async def close(self) -> None:
        """Close the connections to the policy."""
        for client in self._sessions.values():
            await client.aclose()

    async def responses(self, request: Request, body: Any = Body()) -> Response:  # noqa: B008 # how FastAPI asks for it
        """Hand the request's bytes on. `body`, parsed or validated by Gym, is not used."""
        session = request.session[SESSION_ID_KEY]
        client = self._sessions.get(session)
        if client is None:
            client = self._sessions[session] = httpx.AsyncClient(base_url=self.config.base_url, timeout=60)
        headers = {"content-type": "application/json"}
        answer = await client.post("/v1/responses", content=await request.body(), headers=headers)
        return Response(answer.content, answer.status_code, media_type=answer.headers["content-type"])

    async def chat_completions(self, body: Any = Body()) -> Any:  # noqa: B008
        """Not spoken."""
        raise NotImplementedError("this policy speaks /v1/responses alone")


if __name__ == "__main__":
    PolicyModel.run_webserver()
