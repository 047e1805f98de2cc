// Keeps the overview up to date. Without it the page is complete, it only stands still.
"use strict";
{
  const page = document.querySelector("[data-live]");
  const sign = document.getElementById("live-sign");
  const SHORTEST = 1000, LONGEST = 30000;
  let socket = null;
  let pause = SHORTEST;
  let again = null;

  const connect = () => {
    clearTimeout(again);
    if (socket || document.hidden) return;
    const url = new URL(page.dataset.live, location.href);
    url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    socket = new WebSocket(url);
    socket.onmessage = (event) => {
      pause = SHORTEST;
      sign.hidden = false;
      for (const [name, html] of Object.entries(JSON.parse(event.data))) replace(name, html);
    };
    socket.onclose = (event) => {
      socket = null;
      sign.hidden = true;
      // 1008: this page may not listen (any more); asking again would not help.
      if (event.code === 1008 || document.hidden) return;
      again = setTimeout(connect, pause);
      pause = Math.min(LONGEST, pause * 2);
    };
  };

  const replace = (name, html) => {
    const place = document.getElementById(`live-${name}`);
    // What somebody is using with the keyboard is left alone until they move on.
    if (place && !place.contains(document.activeElement)) place.innerHTML = html;
  };

  const disconnect = () => {
    clearTimeout(again);
    if (socket) socket.close();
  };

  if (page) {
    document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
    window.addEventListener("pagehide", disconnect);
    connect();
  }
}
