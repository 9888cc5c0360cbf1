// What scrolls sideways must be reachable with the keyboard: a tab stop, only where it scrolls.
(() => {
  const wide = ".katex-display, .pst-scrollable-table-container, .output, pre";
  function mark() {
    for (const box of document.querySelectorAll(wide)) {
      const scrolls = box.scrollWidth > box.clientWidth + 1 && getComputedStyle(box).overflowX !== "visible";
      if (scrolls) box.tabIndex = 0;
      else if (box.tabIndex === 0) box.removeAttribute("tabindex");
    }
  }
  addEventListener("load", mark);
  addEventListener("resize", mark);
  document.addEventListener("toggle", mark, true); // a solution that opens
})();
