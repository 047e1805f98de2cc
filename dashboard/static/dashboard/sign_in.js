// Asks whether the sign-in is done, and goes where that leads. Without it the page loads itself again.
"use strict";
{
  const place = document.querySelector("[data-asks]");
  const ask = async () => {
    let to = "";
    try {
      const answer = await fetch(location.href, { headers: { "X-Asks": "to" } });
      to = (await answer.json()).to;
    } catch {
      // The gateway or the network is away for a moment; it is asked again.
    }
    if (to) location.assign(to);
    else setTimeout(ask, 1000 * place.dataset.asks);
  };
  setTimeout(ask, 1000 * place.dataset.asks);
}
