"""Whole models and layers, judged without a reference: by laws that every model with attention keeps."""

from .checking import assert_model as assert_model
from .checking import check_model as check_model
