"""What a deployment's mark can and cannot do, measured on the deployment itself: ``dewmark comply``.

`measuring` plans and measures in stages that resume, `findings` turns the rows into figures, `dossier` puts
them together and `dossier_pages` shows them.
"""
