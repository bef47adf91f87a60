"""Settings of all property tests: what they find must not depend on how busy the machine is."""

from hypothesis import HealthCheck, settings

# Drawing the first text on a new machine builds Unicode tables for seconds; deadlines and speed checks would judge that.
settings.register_profile("lockstep", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("lockstep")
