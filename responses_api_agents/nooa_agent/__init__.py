"""The NOOA agent for NeMo Gym. `responses_api_agents` itself is a namespace that Gym's own agents share."""
