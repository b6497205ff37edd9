"""What keeping every turn exactly costs: `python -m responses_api_agents.nooa_agent.benchmarks.measure_replay`."""
