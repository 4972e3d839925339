"""The board to open first, for grafanalib's tools; ``ufwatch dashboards`` writes the same."""

from ufwatch.render.boards import named

dashboard = named("overview")
