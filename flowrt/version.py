"""The version of flowrt."""

VERSION = "0.1.0"
