"""What a deployment's mark can and cannot do, measured on the deployment itself: ``dewmark comply``.

`plan` says what is measured, `measuring` does it in stages that resume, `findings` turns the rows into the
figures of a dossier.
"""
