"""What a fleet serves, as its settings and catalog have it: the same for the controller and for routers."""

from schemas.catalog import Catalog, ServiceLevel
from schemas.settings import Settings

Kind = tuple[str, str]
"""(public model, SLO class)."""


def levels_of(settings: Settings, catalog: Catalog) -> dict[Kind, ServiceLevel]:
    """What is promised for each (model, SLO class), in the order of the settings.

    Raises:
        ValueError: the settings name a model or class that the catalog does not have.
    """
    known = {(model.name, level.slo_class): level for model in catalog.models for level in model.levels}
    if not settings.control.serve:
        return known
    wanted = [
        (model, slo_class) for model, classes in settings.control.serve.items() for slo_class in classes
    ]
    for model, slo_class in wanted:
        if (model, slo_class) not in known:
            raise ValueError(f"control.serve: {model}/{slo_class} is not in the catalog")
    return {kind: known[kind] for kind in wanted}
