"use strict";
function at(id) { return document.getElementById(id); }
function make(tag, settings, ...children) {
  const made = Object.assign(document.createElement(tag), settings);
  made.append(...children);
  return made;
}
function put(node, text) { if (node.textContent !== text) node.textContent = text; }
function name(node, value) { if (node.getAttribute("class") !== value) node.setAttribute("class", value); }
function count(value) { return value === null || value === undefined ? "–" : value.toLocaleString("en"); }
function age(seconds) {
  if (seconds < 60) return Math.floor(seconds) + " s";
  if (seconds < 3600) return Math.floor(seconds / 60) + " min";
  return seconds < 172800 ? (seconds / 3600).toFixed(1) + " h" : Math.floor(seconds / 86400) + " days";
}
function clock(at) {
  const when = new Date(at * 1000);
  return when.toLocaleTimeString([], {hour12: false}) + "." + String(when.getMilliseconds()).padStart(3, "0");
}
function first() { return JSON.parse(at("first").textContent); }
