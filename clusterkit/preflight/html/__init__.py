"""The report as one page of HTML that needs no network: for a browser, a colleague, a printer."""

from clusterkit.preflight.html.page import page

__all__ = ["page"]
