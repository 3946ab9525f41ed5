"""Settings that every test shares."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# the first call of a compiled kernel takes seconds; noise of the machine is no failure
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("house")
