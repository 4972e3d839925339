"""Jitter and latencies, for grafanalib's tools; ``ufwatch dashboards`` writes the same."""

from ufwatch.render.boards import named

dashboard = named("streaming")
