"""How long Hypothesis may take on a busy machine: as long as it needs."""

from hypothesis import HealthCheck, settings

settings.register_profile("serving", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("serving")
