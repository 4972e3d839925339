"""Budgets, burn rates and events of every objective, for grafanalib's tools; ``ufwatch dashboards`` writes the same."""

from ufwatch.render.boards import named

dashboard = named("slo")
