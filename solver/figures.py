"""All that templates are rated by, and the roofline of one service that follows from it."""

from collections.abc import Iterator
from typing import NamedTuple

from schemas.base import digest
from schemas.catalog import Catalog, Phase
from schemas.performance import Efficiencies
from solver.correction import correction_of
from solver.profiles import Profile
from solver.roofline import Roofline


class FiguresError(ValueError):
    """A service that the catalog does not have."""


class Figures(NamedTuple):
    """A catalog with the efficiencies of its GPUs, and measured points where there are any."""

    catalog: Catalog
    efficiencies: Efficiencies
    profile: Profile | None

    @property
    def catalog_digest(self) -> str:
        """Without prices, which templates outlive."""
        return self.catalog.model_copy(update={"prices": ()}).digest

    @property
    def efficiencies_digest(self) -> str:
        return digest(self.efficiencies)

    @property
    def profile_digest(self) -> str | None:
        return None if self.profile is None else self.profile.digest

    def rooflines(
        self, model: str, slo_class: str, phase: Phase, variants: tuple[str, ...] | None = None
    ) -> Iterator[Roofline]:
        """One for each checkpoint of a service, in the catalog's order.

        Args:
            variants: names of those that are allowed; None allows all.

        Raises:
            FiguresError: an unknown model, SLO class or variant.
        """
        found = next((m for m in self.catalog.models if m.name == model), None)
        if found is None:
            raise FiguresError(f"levels: model {model!r} is not in the catalog")
        level = next((level for level in found.levels if level.slo_class == slo_class), None)
        if level is None:
            raise FiguresError(f"levels: {model!r} has no SLO class {slo_class!r}")
        known = tuple(variant.name for variant in found.variants)
        if unknown := set(variants or ()) - set(known):
            raise FiguresError(f"variants: {model!r} has no variant {sorted(unknown)}")
        gpus = {gpu.name: gpu for gpu in self.catalog.gpus}
        for variant in found.variants:
            if variants is None or variant.name in variants:
                correction = correction_of(self.profile, self.catalog, self.efficiencies, found, variant)
                yield Roofline(found, variant, level, gpus, self.efficiencies, phase, correction)
