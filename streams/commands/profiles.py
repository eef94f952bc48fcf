"""Performance profiles: take a user's measurements, measure a live endpoint, fit the model to data."""

import typer

PANEL = "Performance"
app = typer.Typer()
profile_app = typer.Typer(no_args_is_help=True, help="Measured performance, which the planner goes by.")
app.add_typer(profile_app, name="profile", rich_help_panel=PANEL)
