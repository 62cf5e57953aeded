// Texts whose contrast with what is behind them is below 4.5, WCAG 2.2 success criterion 1.4.3.
(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (colour) => {
    canvas.fillStyle = "#000";
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const luminance = (colour) => {
    const [red, green, blue] = rgb(colour).map((part) => linear(part / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const paper = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!/, 0\)$/.test(colour)) return colour;
    }
    return "white";
  };
  const holdsText = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  return [...document.querySelectorAll("body *")]
    .filter((element) => holdsText(element) && !element.closest("svg"))
    .map((element) => {
      const [ink, back] = [luminance(getComputedStyle(element).color), luminance(paper(element))];
      const contrast = (Math.max(ink, back) + 0.05) / (Math.min(ink, back) + 0.05);
      return [contrast, `${element.className}: ${element.textContent.trim().slice(0, 40)}`];
    })
    .filter(([contrast]) => contrast < 4.5);
})()
