"""The report as one page of HTML that needs no network: for a browser, a colleague, a printer."""
