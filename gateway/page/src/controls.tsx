// Small parts that the page is made of: icons, buttons with them, and dialogs.
import { X, type IconNode } from "lucide";
import { h, type ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { t } from "./text";

export function Icon({ of }: { of: IconNode }) {
  const parts = of.map(([name, attributes]) => h(name, attributes as object));
  return (
    <svg class="glyph" viewBox="0 0 24 24" aria-hidden="true">
      {parts}
    </svg>
  );
}

interface IconButtonProps {
  icon: IconNode;
  label: string;
  onClick: () => void;
  isPressed?: boolean | undefined;
  isDisabled?: boolean | undefined;
}

export function IconButton({ icon, label, onClick, isPressed, isDisabled }: IconButtonProps) {
  return (
    <button type="button" class="icon" aria-label={label} title={label} aria-pressed={isPressed} disabled={isDisabled} onClick={onClick}>
      <Icon of={icon} />
    </button>
  );
}

interface LabelledButtonProps {
  icon: IconNode;
  onClick: () => void;
  isDisabled?: boolean;
  children: ComponentChildren;
}

export function LabelledButton({ icon, onClick, isDisabled, children }: LabelledButtonProps) {
  return (
    <button type="button" class="small" disabled={isDisabled} onClick={onClick}>
      <Icon of={icon} /> {children}
    </button>
  );
}

interface DialogProps {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
}

// A dialog that is open while it is rendered. Escape closes it, and the focus returns to where it was.
export function Dialog({ title, onClose, children }: DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current!.showModal(), []);
  return (
    <dialog ref={dialog} aria-label={title} onClose={onClose}>
      <div class="actions">
        <h2>{title}</h2>
        <span class="space" />
        <IconButton icon={X} label={t("Close")} onClick={() => dialog.current!.close()} />
      </div>
      {children}
    </dialog>
  );
}
