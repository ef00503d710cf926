package check

import (
	"net/url"
	"strings"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
)

func (c *Checker) image(name string, value []byte, deleted bool) error {
	old, exists := c.images[name]
	new, err := keep(c, ImageKey(name), value, deleted, old, &imagev1alpha1.MacOSImage{}, exists)
	if err != nil {
		return err
	}
	if new != nil {
		c.images[name] = new
		return nil
	}
	delete(c.images, name)
	for key := range c.want {
		if strings.HasPrefix(key, "image-use/"+url.PathEscape(name+"/")) {
			c.violate(ImageKey(name), "Image", "it is deleted while it is used: %s", key)
		}
	}
	return nil
}

// wants adds an expected index key.
func (c *Checker) wants(key, kind, id, value string) {
	if id == "" {
		return
	}
	at := kind + "/" + url.PathEscape(id)
	if other, taken := c.want[at]; taken {
		c.violate(key, "Unique", "%s %s also belongs to %s", kind, id, other)
	}
	c.want[at] = value
	c.current.index[at] = true
}

func (c *Checker) unwant(kind, id string) {
	if id == "" {
		return
	}
	at := kind + "/" + url.PathEscape(id)
	delete(c.want, at)
	c.current.index[at] = true
}
