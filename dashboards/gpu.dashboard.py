"""Cards, their ageing, compiled graphs, for grafanalib's tools; ``ufwatch dashboards`` writes the same."""

from ufwatch.render.boards import named

dashboard = named("gpu")
