"""How many coordinates and bits a lexicon needs: what is kept of the vectors, and of translations.

    python benchmarks/lexicon_size.py FORMS.tsv DIR

The arguments are the list of forms and the output of `benchmarks/encode_lexicon.py`. Prints one row of the
table in docs/lexicon.md per pair of coordinates and bits. Translations: for each English word the five below,
their mean cosine with it, and how often one is nearest among 10,000 frequent forms of its language.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from dewmark.arrays import F32
from dewmark.config import cache_dir
from dewmark.core.whitening import normalize_rows
from dewmark.encoders import load_encoder
from dewmark.encoders.lexicon_build import best_levels
from dewmark.encoders.word_vectors import WordVectors, load_word_statistics
from dewmark.workspace import Workspace

LANGUAGES = ("de", "fr", "es", "ru", "tr")
TRANSLATIONS = """
bridge brücke pont puente мост köprü
water wasser eau agua вода su
house haus maison casa дом ev
city stadt ville ciudad город şehir
child kind enfant niño ребенок çocuk
mother mutter mère madre мать anne
father vater père padre отец baba
night nacht nuit noche ночь gece
window fenster fenêtre ventana окно pencere
doctor arzt médecin médico врач doktor
school schule école escuela школа okul
teacher lehrer professeur profesor учитель öğretmen
river fluss rivière río река nehir
mountain berg montagne montaña гора dağ
bread brot pain pan хлеб ekmek
money geld argent dinero деньги para
government regierung gouvernement gobierno правительство hükümet
war krieg guerre guerra война savaş
peace frieden paix paz мир barış
history geschichte histoire historia история tarih
music musik musique música музыка müzik
winter winter hiver invierno зима kış
summer sommer été verano лето yaz
strong stark fort fuerte сильный güçlü
beautiful schön beau hermoso красивый güzel
old alt vieux viejo старый eski
new neu nouveau nuevo новый yeni
small klein petit pequeño маленький küçük
big groß grand grande большой büyük
read lesen lire leer читать okumak
write schreiben écrire escribir писать yazmak
eat essen manger comer есть yemek
sleep schlafen dormir dormir спать uyumak
buy kaufen acheter comprar купить almak
sell verkaufen vendre vender продавать satmak
live leben vivre vivir жить yaşamak
die sterben mourir morir умереть ölmek
king könig roi rey король kral
church kirche église iglesia церковь kilise
garden garten jardin jardín сад bahçe
tree baum arbre árbol дерево ağaç
flower blume fleur flor цветок çiçek
bird vogel oiseau pájaro птица kuş
dog hund chien perro собака köpek
cat katze chat gato кошка kedi
horse pferd cheval caballo лошадь at
train zug train tren поезд tren
car auto voiture coche машина araba
street straße rue calle улица sokak
hand hand main mano рука el
eye auge œil ojo глаз göz
heart herz cœur corazón сердце kalp
dream traum rêve sueño сон rüya
fire feuer feu fuego огонь ateş
sea meer mer mar море deniz
sun sonne soleil sol солнце güneş
moon mond lune luna луна ay
law gesetz loi ley закон yasa
work arbeit travail trabajo работа iş
friend freund ami amigo друг arkadaş
"""
CANDIDATES = 10_000
SIZES = ((64, 4), (96, 4), (128, 4), (144, 4), (176, 3), (176, 16))


def quantised(coordinates: F32, bits: int) -> F32:
    """Coordinates (N, r) rounded to 2 ** bits levels each; 16 bits: as they are."""
    if bits == 16:
        return coordinates
    scales = coordinates.std(axis=0)
    levels = best_levels(coordinates / scales, 2**bits)
    places = np.searchsorted((levels[1:] + levels[:-1]) / 2, coordinates / scales)
    return levels[places] * scales


def translations(tokens: F32, row: dict[str, int], languages: np.ndarray) -> tuple[float, float]:
    """The mean cosine of translations, and how often the right one is nearest, over five languages."""
    cosines, first = [], []
    lines = [line.split() for line in TRANSLATIONS.strip().splitlines()]
    for column, language in enumerate(LANGUAGES, start=1):
        pairs = [(line[0], line[column]) for line in lines if line[0] != line[column]]
        known = [(row[a], row[b]) for a, b in pairs if a in row and b in row]
        english, right = (np.array(side) for side in zip(*known, strict=True))
        candidates = np.union1d(np.flatnonzero(languages == language)[:CANDIDATES], right)
        similar = tokens[english] @ tokens[candidates].T
        cosines.append((tokens[english] * tokens[right]).sum(axis=1).mean())
        first.append((candidates[similar.argmax(axis=1)] == right).mean())
    return float(np.mean(cosines)), float(np.mean(first))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("forms", type=Path)
    parser.add_argument("reduced", type=Path)
    parser.add_argument("--encoder", default="use-m3")
    options = parser.parse_args()
    lines = [line.split("\t") for line in options.forms.read_text(encoding="utf-8").splitlines()]
    row = {line[0]: i for i, line in enumerate(lines)}
    parts = [np.load(file) for file in sorted(options.reduced.glob("reduced-*.npz"))]
    basis, mean, spread = (parts[0][name] for name in ("basis", "mean", "spread"))
    coordinates = np.concatenate([part["coordinates"] for part in parts]).astype(np.float32)
    energy = np.concatenate([part["energy"] for part in parts])
    vectors = WordVectors(load_encoder(options.encoder, device="cpu"), None)
    statistics = load_word_statistics("default", vectors=vectors, workspace=Workspace(cache=cache_dir()))
    centre = statistics.running_centre.astype(np.float64)
    removed = statistics.removed.astype(np.float64)
    centre = centre - (centre @ removed.T) @ removed - mean
    inside = (basis @ centre).astype(np.float32)
    # the squared length of P (M − centre); the part of the centre outside the basis is small and left out
    length = np.sqrt(energy - 2 * coordinates @ inside + centre @ centre)
    for r, bits in SIZES:
        tokens = normalize_rows(quantised(coordinates[:, :r], bits) - inside[:r])
        exact = ((tokens * (coordinates[:, :r] - inside[:r])).sum(axis=1) / length).mean()
        near, nearest = translations(tokens, row, np.array([line[2] for line in lines]))
        kept = spread[:r].sum() / spread.sum()
        print(f"| {r}, {bits} | {r * bits // 8} | {exact:.2f} | {kept:.0%} | {near:.2f} | {nearest:.0%} |")


if __name__ == "__main__":
    main()
