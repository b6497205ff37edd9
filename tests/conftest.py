"""Hypothesis profiles: `fast` by default, `thorough` with `pytest --hypothesis-profile=thorough`."""

from hypothesis import HealthCheck, settings

# Deadlines and slow draws say how busy the machine is, not whether the code is right.
_CALM = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("fast", max_examples=40, deadline=None, print_blob=True, suppress_health_check=_CALM)
settings.register_profile("thorough", max_examples=1000, deadline=None, print_blob=True, suppress_health_check=_CALM)
settings.load_profile("fast")
