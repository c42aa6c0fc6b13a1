"""Turn text into prompts for a picture or video generator, shot by shot while it is being written."""

from specstream_adapters.prompt.model import ModelRewriter
from specstream_adapters.prompt.template import TemplateRewriter

__all__ = ["ModelRewriter", "TemplateRewriter"]
