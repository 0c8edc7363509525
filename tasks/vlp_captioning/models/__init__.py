"""The captioners by name."""

from vlp_captioning.models.acf import AcfCaptioner
from vlp_captioning.models.base import Caption, Captioner, InputSettings, Shape
from vlp_captioning.models.eta import EtaCaptioner
from vlp_captioning.models.images import Images, Memory
from vlp_captioning.models.m2 import M2Captioner
from vlp_captioning.models.mdsan import MdsanCaptioner
from vlp_captioning.models.ngsan import NgsanCaptioner
from vlp_captioning.models.transformer import TransformerCaptioner
from vlp_captioning.models.updown import UpDownCaptioner
from vlp_captioning.models.xlan import XlanCaptioner
from vlp_captioning.models.xtransformer import XTransformerCaptioner

MODELS: dict[str, type[Captioner]] = {
    model.name: model
    for model in (
        TransformerCaptioner,
        MdsanCaptioner,
        NgsanCaptioner,
        AcfCaptioner,
        XlanCaptioner,
        XTransformerCaptioner,
        EtaCaptioner,
        UpDownCaptioner,
        M2Captioner,
    )
}

__all__ = ["MODELS", "Caption", "Captioner", "Images", "InputSettings", "Memory", "Shape"]
